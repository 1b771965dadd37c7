"""Start of the temporary Prefect server: `python -P start_server.py APP OPTION...` takes what `uvicorn` takes.

The pipeline runs it as a child process and never imports it.
"""

import gc
import importlib
import sys

if __name__ == "__main__":
    gc.disable()  # as in `storage.process.gc_paused`
    import uvicorn

    importlib.import_module(sys.argv[1].partition(":")[0])  # takes seconds
    gc.freeze()
    gc.enable()
    uvicorn.main()
