"""The half that needs the device: implementations, the gate, the clocks, the instruments, the session."""
