"""Make a Hugging Face folder of a checkpoint: ``python examples/convert_checkpoint.py CHECKPOINT_DIR OUT_DIR``.

One process, without the run and without a GPU; one file or the shards of any number of ranks; LoRA adapters are merged.
"""

import argparse
import sys
from pathlib import Path


def main() -> None:
    """Convert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a folder like output/<run>/checkpoints/step=000020")
    parser.add_argument("out", type=Path, help="the folder to make")
    parser.add_argument("--config", type=Path, help="folder with the config.json of the model, where there is none")
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer (default: that of the checkpoint)")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], help="default: as in the checkpoint")
    arguments = parser.parse_args()
    # Imported here, so that --help answers at once.
    from roll.models.quiet import quiet_libraries

    quiet_libraries()
    from roll.models.convert import ConversionError, convert_checkpoint

    try:
        convert_checkpoint(
            arguments.checkpoint,
            arguments.out,
            config=arguments.config,
            tokenizer=arguments.tokenizer,
            dtype=arguments.dtype,
        )
    except ConversionError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("Stopped.\n")
        sys.exit(130)
    sys.stdout.write(f"Written: {arguments.out}\n")


if __name__ == "__main__":
    main()
