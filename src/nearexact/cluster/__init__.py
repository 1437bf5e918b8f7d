"""One fit over many machines, by Dask's `distributed`: rows stay on the workers, and sums over them come back.

Nothing here is imported before a Dask collection is passed. What runs on a worker is the code that runs here: see
`nearexact.gp.rows` for what is asked of rows, and `nearexact.gp.sweeps` for the sums.
"""
