"""The largest errors of `passes/expand.py`, in units in the last place of the exact result."""

ULP = {
    (op, dtype): {"float32": single, "float64": double}.get(dtype, 0.51)
    for op, single, double in [("exp2", 0.88, 0.90), ("log2", 1.32, 1.05), ("sin", 1.50, 1.50)]
    for dtype in ("float32", "float64", "float16", "bfloat16")
}
