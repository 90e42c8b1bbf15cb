"""One module for each library. A function takes a `Case` and a `Budget`.

It builds the library's own model and hands back a call; the clock runs while that is called. The
call answers a dict: `value`, and where the task asks for them `marginals`, `state` or `tables`.
"""
