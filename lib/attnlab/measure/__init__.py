"""The half that needs the device: lock the environment, build inputs, call, check, time, record."""
