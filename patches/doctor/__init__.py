"""What `accel-bridge doctor` knows of Megatron: its installation, its arguments, its memory."""
