"""The main job: streams of findings, their driver, and the interval they make."""
