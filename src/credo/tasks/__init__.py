"""What posteriors are good for, once there is one."""

from credo.tasks import distill, fidelity, information

__all__ = ["distill", "fidelity", "information"]
