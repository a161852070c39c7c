// RUN: %dodeca-opt %s --pass-pipeline='dodeca-verify,func.func(cse),dodeca-simplify' --mlir-print-ir-after-all 2>&1 >%t.mlir | FileCheck %s --check-prefix=ALL
// RUN: %dodeca-opt %s --pass-pipeline='dodeca-verify,func.func(cse),dodeca-simplify' --mlir-print-ir-after-change 2>&1 >%t.mlir | FileCheck %s --check-prefix=CHANGE
// RUN: %dodeca-opt %s --pass-pipeline='dodeca-verify,func.func(cse),dodeca-simplify' --mlir-print-ir-before-all 2>&1 >%t.mlir | FileCheck %s --check-prefix=BEFORE
// RUN: %dodeca-opt %s --pass-pipeline='dodeca-verify,func.func(cse),dodeca-simplify' --mlir-timing 2>&1 >%t.mlir | FileCheck %s --check-prefix=TIME
// RUN: %dodeca-opt %s -o %t.out && FileCheck %s --check-prefix=FILE --input-file=%t.out
// RUN: %dodeca-opt %s --mlir-print-debuginfo | FileCheck %s --check-prefix=PLACE
// RUN: %dodeca-opt - --mlir-print-debuginfo <%s | FileCheck %s --check-prefix=STDIN
// RUN: %dodeca-opt %s --mlir-print-op-generic | FileCheck %s --check-prefix=GENERIC

// ALL: IR Dump After dodeca-verify (dodeca-verify)
// ALL:   dodeca.exp2
// ALL: IR Dump After CSE (cse)
// ALL:   dodeca.exp2
// ALL: IR Dump After dodeca-simplify (dodeca-simplify)
// ALL-NOT: dodeca.exp2

// CHANGE-NOT: dodeca-verify
// CHANGE-NOT: CSE
// CHANGE: IR Dump After dodeca-simplify (dodeca-simplify)
// CHANGE-NOT: dodeca.exp2

// BEFORE: IR Dump Before dodeca-verify (dodeca-verify)
// BEFORE: IR Dump Before CSE (cse)
// BEFORE: IR Dump Before dodeca-simplify (dodeca-simplify)
// BEFORE:   dodeca.exp2

// TIME: Execution time report
// TIME-DAG: dodeca-verify
// TIME-DAG: CSE
// TIME-DAG: dodeca-simplify

// FILE: func.func @f
// FILE: dodeca.exp2

// PLACE: loc("{{.*}}print_ir.mlir":[[#@LINE + 6]]:{{[0-9]+}})
// STDIN: loc("<stdin>":[[#@LINE + 5]]:{{[0-9]+}})

// GENERIC: "func.func"() <{{.*}}sym_name = "f"
// GENERIC: "func.return"
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "dodeca.exp2"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %x : tensor<4xf32>
}
