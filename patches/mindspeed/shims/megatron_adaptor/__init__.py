"""Stands for MegatronAdaptor where it does not do its work: importing it is all it takes."""
