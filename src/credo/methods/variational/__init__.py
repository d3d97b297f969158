"""Variational inference: a family of distributions, fitted by descent on the ELBO."""
