"""What leaves a model that standardises takes x and gives outputs in their own units."""

import copy
import pickle

import pytest
import torch
from torch import nn

import credo
from credo import compress
from credo.compress.bits_back import bits_back, unpack
from credo.compress.onnx import opened
from credo.core.errors import NetworkError
from credo.core.standardised import OwnUnits, units_of, without_units

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


@pytest.fixture(scope="module")
def data():
    source = torch.Generator().manual_seed(0)
    z = torch.randn(90, 4, generator=source)
    v = z @ torch.randn(4, 1, generator=source) + 0.2 * torch.randn(90, 1, generator=source)
    return z * torch.tensor([1e-6, 1e5, 3.0, 40.0]) + 100.0 * torch.arange(4), 500 * v + 3e3


@pytest.fixture(scope="module")
def bnn(data):
    torch.manual_seed(0)
    return credo.BNN(net(), "gaussian").fit(data, "vi", epochs=60, progress=False)


def net():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


def close(ours, theirs, tolerance=1e-4):
    return float((ours - theirs).abs().max()) < tolerance * float(theirs.abs().max())


def test_the_mean_network(bnn, data):
    x, _ = data
    expected = bnn.predict(x, shortcut="mean").mean
    plain = compress.plain(bnn)
    assert torch.allclose(plain(x), expected) and torch.allclose(plain(x.double()), expected)
    assert list(plain.state_dict()) == list(net().state_dict())
    for other in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert torch.equal(other(x), plain(x))
    assert not torch.allclose(without_units(plain)(x), expected)
    scores, known = compress.score(plain, bnn, data), bnn.predict(x, shortcut="mean")
    assert scores["nll"] == pytest.approx(-float(known.log_prob(data[1]).mean()), rel=1e-5)


def test_pruned_slimmed_and_quickened(bnn, data, tmp_path):
    x, _ = data
    pruned = compress.prune(bnn, "snr", share=0.6)
    expected = pruned.net(x)
    assert abs(float(expected.mean().detach()) - 3e3) < 1e3
    slim = compress.slim(pruned, x[:8])
    assert isinstance(slim, OwnUnits) and close(slim(x), expected)
    assert close(pickle.loads(pickle.dumps(slim))(x), expected)
    assert torch.equal(copy.deepcopy(slim)(x), slim(x))
    assert close(compress.slim(slim, x[:8])(x), expected)
    assert close(compress.quicken(slim, x[:8])(x), expected)
    assert close(compress.tidy(pruned, x[:8]).net(x), expected)
    report = compress.report(pruned, slim, x[:8], rounds=2)
    assert report.difference < 1.0 and report.before.parameters >= report.after.parameters
    tuned = compress.fine_tune(pruned, bnn, data, epochs=3)
    assert compress.score(tuned.net, bnn, data)["rmse"] < 500
    assert len(compress.curve(bnn, data, "snr", at=[0.0, 0.5]).points) == 2


def test_a_file(bnn, data, tmp_path):
    pytest.importorskip("constriction")
    x, _ = data
    report = compress.encode(bnn, tmp_path / "net.credo", note="hello")
    decoded = compress.decode(tmp_path / "net.credo", net())
    assert report.bytes == (tmp_path / "net.credo").stat().st_size
    assert compress.read_note(tmp_path / "net.credo") == "hello"
    expected = bnn.predict(x, shortcut="mean").mean
    assert close(decoded(x), expected, 0.1) and units_of(decoded) is not None
    codes = compress.quantise(compress.pruned_of(bnn), levels=8)
    tuned = compress.tune_books(codes, net(), bnn, data, epochs=2)
    assert units_of(tuned.fill(net())) is not None
    content = bytearray((tmp_path / "net.credo").read_bytes())
    content[30] ^= 1
    (tmp_path / "broken").write_bytes(content)
    with pytest.raises(credo.CredoError, match="checksum"):
        compress.decode(tmp_path / "broken", net())


def test_a_file_of_a_model_that_does_not_standardise_is_as_it_was(data, tmp_path):
    pytest.importorskip("constriction")
    x, y = data
    z, v = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    bnn = credo.BNN(net(), "gaussian").fit((z, v), "vi", epochs=2, progress=False)
    compress.encode(bnn, tmp_path / "net")
    assert (tmp_path / "net").read_bytes()[4] == 1


def test_onnx(bnn, data, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    x, _ = data
    path = compress.to_onnx(bnn, tmp_path / "mean.onnx", x[:4])
    (out,) = opened(path)(x)
    assert close(out, bnn.predict(x, shortcut="mean").mean)
    path = compress.to_onnx(bnn, tmp_path / "draws.onnx", x[:4], num_samples=3)
    mean, variance = opened(path)(x)
    expected = bnn.predict(x, 3)
    assert close(mean, expected.mean) and close(variance, expected.variance, 1e-3)
    slim = compress.slim(bnn, x[:8])
    (out,) = opened(compress.to_onnx(slim, tmp_path / "slim.onnx", x[:4]))(x)
    assert close(out, slim(x))


def test_bits_back_with_raw_inputs(data, tmp_path):
    pytest.importorskip("constriction")
    x, y = data
    labels = (y > y.mean()).long().squeeze(1)
    torch.manual_seed(0)
    labelled = credo.BNN(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    labelled.fit((x, labels), "vi", epochs=30, progress=False)
    assert labelled.standardised.parts == ["inputs"]
    bits_back(labelled, (x, labels), tmp_path / "bits")
    found = unpack(tmp_path / "bits", labelled, x)
    assert torch.equal(found.labels, labels)


def test_a_single_layer_is_the_network_itself(data):
    x, y = data
    bnn = credo.BNN(nn.Linear(4, 1), "gaussian").fit((x, y), "vi", epochs=5, progress=False)
    plain, expected = compress.plain(bnn), bnn.predict(x, shortcut="mean").mean
    assert torch.allclose(plain(x), expected)
    assert close(compress.slim(bnn, x[:8])(x), expected)


def test_a_graph_module_is_refused(data):
    x, y = data
    graph = torch.fx.symbolic_trace(net())
    bnn = credo.BNN(graph, "gaussian").fit((x, y), "map", epochs=2, progress=False)
    with pytest.raises(NetworkError, match="GraphModule"):
        compress.plain(bnn)
