"""Errors, registry, settings, seeds, parameter selection, shells: what everything else stands
on.
"""
