"""The command ``lgm`` (``cli``), and which trace and device its options mean (``target``)."""
