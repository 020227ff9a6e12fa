"""What is timed: implementations of attention, their inputs and outputs, and the float64 oracle they are held to."""
