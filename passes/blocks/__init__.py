"""Programs that blocks of threads run: what a GPU adds to the tile programs of one thread.

`linear` says how tiles lie in threads, `threads` what one of them does, `matrix` and `contraction`
what warps multiply, `staging` what passes through shared memory, `schedules` what is tried, and
`program` is a program of the grid.
"""
