"""An update on its way in: its report, its chunks, its checks."""
