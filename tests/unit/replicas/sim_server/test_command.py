"""`python -m replicas.sim` says what is wrong with its flags before it serves."""

import pytest

from replicas.sim_server.command import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--total-blocks", "2", "--block-size", "4"], "sim.max_model_len"),
        (["--block-size", "0"], "block_size"),
        (["--max-num-seqs", "9000"], "max_num_batched_tokens"),
        (["--timing", "nowhere.json"], "sim.timing"),
    ],
)
def test_a_wrong_flag_is_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 2
    assert said in capsys.readouterr().err
