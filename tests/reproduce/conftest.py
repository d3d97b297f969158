"""Every experiment is registered, whichever tests of this folder run."""

import credo_reproduce.catalogue  # noqa: F401
