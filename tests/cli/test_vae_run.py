import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from credo.cli.vae_run import (
    FILE,
    VaeFiles,
    counted,
    default_hidden,
    describe_nets,
    located,
    make_likelihood,
    read_source,
    times,
)
from credo.core.atomic import write_json
from credo.core.errors import RunError, SettingError
from credo.engine.run import Run
from credo.likelihoods import ContinuousBernoulli, Pixels


def files(**changes):
    encoder, decoder = describe_nets("mlp", (5, 4), (8, 8), 6, 3, 64)
    data = {"source": "digits", "size": None, "labels": None, "limit": 20}
    fit = {"epochs": 1, "batch_size": 10, "lr": 0.01, "seed": 1}
    return VaeFiles(**{"encoder": encoder, "decoder": decoder, "data": data, "fit": fit} | changes)


def test_networks_are_built_again_from_their_description_without_touching_the_global_state():
    before = torch.get_rng_state()
    encoder, decoder = files().build(3)
    again, _ = files().build(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(
        torch.equal(a, b) for a, b in zip(encoder.parameters(), again.parameters(), strict=True)
    )
    assert encoder(torch.zeros(2, 8, 8)).shape == (2, 6) and decoder(torch.zeros(2, 3)).shape == (
        2,
        64,
    )


@pytest.mark.parametrize(("net", "hidden"), [("mlp", (5, 4)), ("conv", (2, 3, 7))])
def test_decoders_mirror_their_encoders_and_may_give_several_numbers_per_pixel(net, hidden):
    encoder, decoder = describe_nets(net, hidden, (3, 8, 6), 4, 2, 2 * 144)
    description = files(encoder=encoder, decoder=decoder)
    one, other = description.build()
    assert one(torch.zeros(2, 3, 8, 6)).shape == (2, 4) and other(torch.zeros(2, 2)).shape == (
        2,
        288,
    )
    one, other = description.with_latent(10, 5).build()
    assert one(torch.zeros(2, 3, 8, 6)).shape == (2, 10) and other(torch.zeros(2, 5)).shape == (
        2,
        288,
    )


def test_networks_that_do_not_fit_are_refused():
    with pytest.raises(SettingError, match="Did you mean 'conv'"):
        default_hidden("convv")
    with pytest.raises(SettingError, match="such as 32,64,256"):
        describe_nets("conv", (5,), (8, 8), 4, 2, 64)
    with pytest.raises(SettingError, match=r"shape \(64,\) each: use --net mlp"):
        describe_nets("conv", (5, 4), (64,), 4, 2, 64)


def test_the_file_is_read_back(tmp_path):
    run = Run(tmp_path)
    files().attach(run)
    run.begin({})
    assert VaeFiles.read(tmp_path) == files()


def test_a_file_with_former_names_is_read_as_one_with_the_present_ones(tmp_path):
    encoder, decoder = describe_nets("conv", (4, 6, 5), (8, 8), 6, 3, 64)
    now = files(encoder=encoder, decoder=decoder)
    before = asdict(now)
    for part in (before["encoder"], before["decoder"]):
        part["args"]["channels"] = part["args"].pop("widths")
    write_json(tmp_path / FILE, before)
    assert VaeFiles.read(tmp_path) == now
    assert len(VaeFiles.read(tmp_path).build()) == 2


def test_directories_that_hold_no_such_run_are_refused(tmp_path):
    with pytest.raises(RunError, match="none does not exist"):
        VaeFiles.read(tmp_path / "none")
    with pytest.raises(RunError, match=f"has no {FILE}"):
        VaeFiles.read(tmp_path)
    (tmp_path / FILE).write_text(json.dumps({"encoder": {}}))
    with pytest.raises(RunError, match="does not describe a run"):
        VaeFiles.read(tmp_path)
    write_json(tmp_path / FILE, asdict(files()))
    (tmp_path / "config.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(RunError, match=r"is not finished; give credo vae fit .* --resume"):
        VaeFiles.read(tmp_path).load(tmp_path)


def test_a_source_is_held_out_and_limited_the_same_every_time():
    first, again = (read_source("digits", None, None, 50) for _ in range(2))
    assert len(first.x) == 50 and first.test_x is not None and len(first.test_x) == 180
    assert np.array_equal(first.x, again.x) and np.array_equal(first.test_x, again.test_x)


def test_paths_are_kept_in_full_and_names_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.npy").write_bytes(b"")
    (tmp_path / "digits").mkdir()
    assert located("a.npy") == str((tmp_path / "a.npy").resolve())
    assert located("digits") == "digits" and located("nothing") == "nothing"


def test_pixels_are_counted_as_the_likelihood_wants():
    x = np.array([[0.0, 5 / 16, 1.0]], np.float32)
    assert (
        counted(Pixels(17), x).tolist() == [[0, 5, 16]] and counted(ContinuousBernoulli(), x) is x
    )


def test_a_likelihood_that_counts_levels_gets_those_of_the_pixels():
    assert make_likelihood("pixels", 17).config() == {"levels": 17}
    assert make_likelihood("gaussian", 17).name == "gaussian"


def test_a_shape_is_written_with_crosses():
    assert times((3, 8, 8)) == "3 x 8 x 8"
