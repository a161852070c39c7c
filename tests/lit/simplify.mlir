// RUN: %dodeca-opt %s --pass-pipeline=dodeca-simplify | FileCheck %s

// CHECK-LABEL: func.func @equal_operations_merge
// CHECK-NEXT:    %[[S:.*]] = "dodeca.add"(%arg0, %arg1)
// CHECK-NEXT:    %[[P:.*]] = "dodeca.mul"(%[[S]], %[[S]])
// CHECK-NEXT:    return %[[P]]
func.func @equal_operations_merge(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "dodeca.add"(%x, %y) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "dodeca.add"(%x, %y) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "dodeca.mul"(%0, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// A sum is the same in either order, a remainder is not.
// CHECK-LABEL: func.func @commutative
// CHECK-COUNT-1: dodeca.add
// CHECK-NOT:     dodeca.add
// CHECK-COUNT-2: dodeca.mod
// CHECK:         return
func.func @commutative(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = "dodeca.add"(%x, %y) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "dodeca.add"(%y, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "dodeca.mod"(%x, %y) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = "dodeca.mod"(%y, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// Operations that differ only in an attribute, or only in the type of their result, stay.
// CHECK-LABEL: func.func @attributes_and_types_count
// CHECK-COUNT-2: dodeca.sum_reduce
// CHECK-COUNT-2: dodeca.cast
func.func @attributes_and_types_count(%x: tensor<4x4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4x4xf16>, tensor<4x4xi8>) {
  %0 = "dodeca.sum_reduce"(%x) {axis = 0 : i64} : (tensor<4x4xf32>) -> tensor<4xf32>
  %1 = "dodeca.sum_reduce"(%x) {axis = 1 : i64} : (tensor<4x4xf32>) -> tensor<4xf32>
  %2 = "dodeca.cast"(%x) : (tensor<4x4xf32>) -> tensor<4x4xf16>
  %3 = "dodeca.cast"(%x) : (tensor<4x4xf32>) -> tensor<4x4xi8>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4x4xf16>, tensor<4x4xi8>
}

// A whole chain that nothing reads goes, with the sizes it needed; a call stays.
// CHECK-LABEL: func.func @dead
// CHECK-NEXT:    call @opaque
// CHECK-NEXT:    return
func.func @dead(%x: tensor<?xf32>) {
  %zero = arith.constant 0 : index
  %two = arith.constant 2 : index
  %n = tensor.dim %x, %zero : tensor<?xf32>
  %m = arith.muli %n, %two : index
  %0 = "dodeca.iota"(%m) {axis = 0 : i64} : (index) -> tensor<?xi64>
  %1 = "dodeca.cast"(%0) : (tensor<?xi64>) -> tensor<?xf32>
  %2 = "dodeca.exp2"(%1) : (tensor<?xf32>) -> tensor<?xf32>
  call @opaque() : () -> ()
  return
}

func.func private @opaque()
