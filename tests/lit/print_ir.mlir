// RUN: %dodeca-opt %s --pass-pipeline='dodeca-verify,func.func(cse),dodeca-simplify' --mlir-print-ir-before-all --mlir-print-ir-after-all --mlir-timing 2>&1 >%t.mlir | FileCheck %s --check-prefix=ALL
// RUN: %dodeca-opt %s --pass-pipeline='dodeca-verify,func.func(cse),dodeca-simplify' --mlir-print-ir-after-change 2>&1 >%t.mlir | FileCheck %s --check-prefix=CHANGE
// RUN: %dodeca-opt %s --mlir-print-debuginfo | FileCheck %s --check-prefix=PLACE
// RUN: %dodeca-opt - --mlir-print-debuginfo <%s | FileCheck %s --check-prefix=STDIN
// RUN: %dodeca-opt %s --mlir-print-op-generic | FileCheck %s --check-prefix=GENERIC

// ALL: IR Dump Before dodeca-verify (dodeca-verify)
// ALL: IR Dump After dodeca-verify (dodeca-verify)
// ALL:   dodeca.exp2
// ALL: IR Dump Before CSE (cse)
// ALL: IR Dump After CSE (cse)
// ALL: IR Dump Before dodeca-simplify (dodeca-simplify)
// ALL:   dodeca.exp2
// ALL: IR Dump After dodeca-simplify (dodeca-simplify)
// ALL-NOT: dodeca.exp2
// ALL: Execution time report
// ALL-DAG: dodeca-verify
// ALL-DAG: CSE
// ALL-DAG: dodeca-simplify

// CHANGE-NOT: dodeca-verify
// CHANGE-NOT: CSE
// CHANGE: IR Dump After dodeca-simplify (dodeca-simplify)
// CHANGE-NOT: dodeca.exp2

// PLACE: loc("{{.*}}print_ir.mlir":[[#@LINE + 6]]:{{[0-9]+}})
// STDIN: loc("<stdin>":[[#@LINE + 5]]:{{[0-9]+}})

// GENERIC: "func.func"() <{{.*}}sym_name = "f"
// GENERIC: "func.return"
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "dodeca.exp2"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %x : tensor<4xf32>
}
