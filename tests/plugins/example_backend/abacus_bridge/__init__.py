"""An accel_bridge backend for the Abacus, a make-believe accelerator."""
