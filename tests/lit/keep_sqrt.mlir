// RUN: %dodeca-opt %s --pass-pipeline=dodeca-keep-sqrt | FileCheck %s

// The lowering to nvvm wants every square root to be a call into libdevice; hidden, it is an instruction.
// CHECK-LABEL: llvm.func @root
// CHECK-NOT:     llvm.intr.sqrt
// CHECK:         llvm.call_intrinsic "llvm.sqrt"(%arg0) : (f32) -> f32
llvm.func @root(%x: f32) -> f32 {
  %0 = llvm.intr.sqrt(%x) : (f32) -> f32
  llvm.return %0 : f32
}
