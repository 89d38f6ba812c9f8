from __future__ import annotations

import os
from pathlib import Path

import pytest

TEST_DATA = "VITAILOR_TEST_DATA"


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder with small public datasets."""
    folder = os.environ.get(TEST_DATA)
    if not folder or not Path(folder).is_dir():
        pytest.skip(f"{TEST_DATA} does not name a folder with the public test datasets")
    return Path(folder)
