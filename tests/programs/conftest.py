from ..haste import plans_in_haste  # noqa: F401 -- a fixture that every test of this folder has
