"""An accel_bridge backend for the Quipu, a make-believe accelerator that computes."""
