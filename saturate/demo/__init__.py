"""`saturate demo`: the main job on real rows, its process killed midway and started again, and what came of it."""

from saturate.demo.command import add_arguments, run

__all__ = ["add_arguments", "run"]
