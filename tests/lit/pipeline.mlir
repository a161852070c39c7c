// RUN: not %dodeca-opt %s --pass-pipeline=dodeca-simplfy 2>&1 | FileCheck %s --check-prefix=PASS
// RUN: not %dodeca-opt %s --pass-pipeline='func.func(no-such-pass)' 2>&1 | FileCheck %s --check-prefix=NESTED
// RUN: not %dodeca-opt %s --pass-pipeline='dodeca-verify{deep=1}' 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: not %dodeca-opt %s --pass-pipeline='canonicalize{deep=1}' 2>&1 | FileCheck %s --check-prefix=UPSTREAM
// RUN: not %dodeca-opt %s --pass-pipeline='func.func(dodeca-verify)' 2>&1 | FileCheck %s --check-prefix=ANCHOR
// RUN: not %dodeca-opt %s --pass-pipeline='func.func(cse' 2>&1 | FileCheck %s --check-prefix=BRACKET
// RUN: not %dodeca-opt %s.missing 2>&1 | FileCheck %s --check-prefix=FILE
// RUN: %dodeca-opt --list-passes | FileCheck %s --check-prefix=LIST
// RUN: %dodeca-opt %s --pass-pipeline='any(cse)' | FileCheck %s --check-prefix=ANY
// RUN: not %dodeca-opt %s --pass-pipeline='cse,test-failing-conversion,convert-func-to-llvm{index-bitwidth=7}' 2>&1 | FileCheck %s --check-prefix=FAILS

// PASS: dodeca-opt: unknown pass 'dodeca-simplfy'; did you mean dodeca-simplify
// PASS-NOT: Traceback
// NESTED: dodeca-opt: unknown pass 'no-such-pass'
// OPTION: dodeca-opt: dodeca-verify: unknown option 'deep'; it has none
// UPSTREAM: dodeca-opt: pipeline: canonicalize{deep=1}: {{.*}}no such option deep
// ANCHOR: dodeca-opt: dodeca-verify runs on the module: it cannot stand inside func.func()
// BRACKET: dodeca-opt: pipeline: missing ')' after 'func.func(cse'
// FILE: dodeca-opt: cannot read {{.*}}.missing: No such file or directory
// LIST: {{^}}dodeca-simplify {{.*}}Removes dead operations
// LIST: {{^}}dodeca-verify {{.*}}Checks every rule of the dialect
// ANY: func.func @f
// FAILS: dodeca-opt: unknown pass 'test-failing-conversion'
func.func @f() {
  return
}
