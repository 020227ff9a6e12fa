"""The half that needs the device: what is timed, the gate, the clocks, the instruments, the session."""
