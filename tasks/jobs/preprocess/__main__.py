"""Entry point of the job: `python -m tasks.jobs.preprocess SPEC`."""

from tasks.jobs import main
from tasks.jobs.spec import PreprocessSpec

if __name__ == "__main__":
    main.main("preprocess", PreprocessSpec)
