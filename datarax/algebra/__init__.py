"""The engine: states, how they merge, travel over devices, hold rows, and are saved."""
