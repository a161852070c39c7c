// What the tool says about its command line; tests/test_opt.py has every case, without a process.
// RUN: not %dodeca-opt %s --pass-pipeline=dodeca-simplfy 2>&1 | FileCheck %s --check-prefix=PASS
// RUN: %dodeca-opt --list-passes | FileCheck %s --check-prefix=LIST

// PASS: dodeca-opt: unknown pass 'dodeca-simplfy'; did you mean dodeca-simplify
// PASS-NOT: Traceback
// LIST: {{^}}dodeca-simplify {{.*}}Removes dead operations
// LIST: {{^}}dodeca-verify {{.*}}Checks every rule of the dialect
