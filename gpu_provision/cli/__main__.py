"""``python -m gpu_provision.cli``, for where the script itself is not on the path."""

from gpu_provision.cli.root import main

if __name__ == "__main__":
    main()
