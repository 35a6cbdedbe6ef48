def resolution_result(server_args, name):
    """From 0.5.19 on an attribute stays as it was given; this is what is in force."""
    return getattr(server_args._resolved or server_args, name)
