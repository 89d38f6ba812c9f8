"""Write the OpenAPI document to a file: ``python -m service.contract docs/openapi.json``.

The copy in the repository is the record of what clients may rely on; a test fails when the routes say something else.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from service.app import create_app
from service.settings import Settings


def contract() -> str:
    """The document as it lies in the repository, independent of the environment."""
    app = create_app(Settings(_env_file=None))
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> None:
    """Write the document."""
    parser = argparse.ArgumentParser(prog="python -m service.contract", description=main.__doc__)
    parser.add_argument("path", type=Path)
    path: Path = parser.parse_args().path
    path.write_text(contract(), encoding="utf-8")


if __name__ == "__main__":
    main()
