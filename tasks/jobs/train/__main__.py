"""Entry point of the job: `python -m tasks.jobs.train SPEC`."""

from tasks.jobs import main
from tasks.jobs.spec import TrainSpec

if __name__ == "__main__":
    main.main("train", TrainSpec)
