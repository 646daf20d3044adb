"""MindSpeed and the scripts written for Ascend: flags, names, and how MindSpeed takes over."""
