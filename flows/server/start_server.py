"""Start of the temporary Prefect server: `python -P start_server.py APP OPTION...` takes what `uvicorn` takes.

The pipeline runs it as a child process and never imports it.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # as in `storage.process.gc_paused`
    import prefect.server.api.server  # noqa: F401 - takes seconds
    import uvicorn

    gc.freeze()
    gc.enable()
    uvicorn.main()
