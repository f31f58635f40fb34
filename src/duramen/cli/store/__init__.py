"""The verb ``topic``, and `append` and `cat` on a whole topic."""
