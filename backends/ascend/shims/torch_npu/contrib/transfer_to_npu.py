"""Scripts import this so that ``cuda`` means their device: with the bridge it does."""
