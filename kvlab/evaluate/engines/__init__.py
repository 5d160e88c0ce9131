"""Serving engines' own cache compression beside kvlab's methods, on the same prompts."""

from pathlib import Path


def openvino_side_file() -> Path:
    """The script that OpenVINO's own Python runs."""
    return Path(__file__).with_name("openvino_side.py")
