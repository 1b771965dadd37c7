"""Entry point of the job: `python -m tasks.jobs.predict SPEC`."""

from tasks.jobs import main
from tasks.jobs.spec import PredictSpec

if __name__ == "__main__":
    main.main("predict", PredictSpec)
