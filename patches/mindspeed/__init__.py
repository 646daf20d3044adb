"""MindSpeed and the scripts written for Ascend: its flags, its names, and how it takes over."""
