"""A run beside others: the same cases again, who leads on another device, a card beside busy neighbours and alone."""
