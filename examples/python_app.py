"""Label every new picture in a folder with the device's own model; new models are used at once.

python examples/python_app.py STATE FOLDER [--once]

STATE is the agent's state folder, FOLDER a camera's folder of pictures. It needs fededge,
onnxruntime, numpy and pillow, but not torch.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import fededge
from fededge.errors import DataError, FedEdgeError

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".ppm")
UNSURE = 0.5


def label_new(predictor: fededge.Predictor, folder: Path, done: set[Path]) -> None:
    for picture in sorted(set(folder.iterdir()) - done):
        done.add(picture)
        if picture.suffix.lower() in PICTURES:
            try:
                answer = predictor.predict(picture)
            except DataError as error:  # an unreadable picture: continue with the next
                print(error)
                continue
            doubt = " (unsure)" if answer.probability < UNSURE else ""
            print(f"{picture.name}: {answer.label} {answer.probability:.4f}{doubt}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--once", action="store_true", help="do not wait for more pictures")
    options = parser.parse_args()
    try:
        predictor, done = fededge.Predictor(options.state), set[Path]()
    except FedEdgeError as error:  # no model yet, ONNX Runtime is missing, …
        raise SystemExit(f"python_app.py: {error}") from None
    print(f"{predictor.about.provider}; version {predictor.version}")
    while True:
        label_new(predictor, options.folder, done)
        if options.once:
            return
        time.sleep(1)


if __name__ == "__main__":
    main()
