"""Files on disk: found below one folder and never outside it, written wholly or not at all."""
