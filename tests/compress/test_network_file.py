"""Files: bit-exact, as long as the models say, and refused when anything is wrong with them."""

import time
import zlib

import pytest
import torch
from torch import nn
from zoo.sparse import lenet_like, random_codes, with_batchnorm

from credo.compress.network_file import HEADER_BYTES, MAGIC, VERSION, read, read_note, write
from credo.compress.quantised import Coded, Quantised, Raw
from credo.compress.weight_coding import code_length
from credo.core.errors import CredoError, NetworkError, RunError


def tiny():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return net, random_codes(net, 0, 1.0, 4)


def empty():
    net = nn.Linear(300, 100)
    return net, Quantised(
        {name: Coded.of(torch.zeros_like(tensor)) for name, tensor in net.state_dict().items()}
    )


FIRST = (
    "6372646f0124ec432dfbe7610e624ab8902359c04429799204208179c44894d294480042"
    "106c30398952d6560910fd664bd3cc2f70d4f0f0d0f1219c4c3076a5d2c9d9858598a91b"
)
NETWORKS = {"lenet": lenet_like, "dense": tiny, "empty": empty, "batchnorm": with_batchnorm}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_what_is_read_is_what_was_written(make, tmp_path):
    net, quantised = make()
    report = write(quantised, tmp_path / "net.credo")
    back = read(tmp_path / "net.credo", net)
    assert list(back) == list(quantised)
    for name in quantised:
        assert type(back[name]) is type(quantised[name])
        assert back[name].tensor().dtype == quantised[name].tensor().dtype
        assert torch.equal(back[name].tensor(), quantised[name].tensor())
    filled = back.fill(net)
    assert all(torch.equal(filled.state_dict()[n], t) for n, t in quantised.state().items())
    assert (report.numel, report.nonzero) == (quantised.numel, quantised.nonzero)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_file_is_as_long_as_the_models_say(make, tmp_path):
    """Within 2 % of code length and header; 4 bytes more are what the coder's state can take, which
    only tiny files notice.
    """
    _, quantised = make()
    report = write(quantised, tmp_path / "net.credo")
    said = report.code_bits / 8 + report.header_bytes
    assert report.bytes == (tmp_path / "net.credo").stat().st_size
    assert report.header_bytes == HEADER_BYTES == 13
    assert abs(report.bytes - said) <= 0.02 * said + (0 if make is lenet_like else 4)
    assert report.code_bits == pytest.approx(
        code_length(quantised) + 1
    )  # one bit says that there is no note
    assert report.ratio == 4 * quantised.numel / report.bytes


def test_a_sparse_lenet_takes_under_two_kilobytes_and_a_second(tmp_path):
    net, quantised = lenet_like()
    start = time.process_time()
    report = write(quantised, tmp_path / "net.credo")
    read(tmp_path / "net.credo", net)
    assert (
        time.process_time() - start < 5
        # of the processor, so that a busy machine does not count; a tenth of that when it was
        # written
    )
    assert report.float32_bytes == 1_724_320 and report.bytes < 1_700 and report.ratio > 1_000


def test_an_empty_network_takes_a_handful_of_bytes(tmp_path):
    assert write(empty()[1], tmp_path / "net.credo").bytes <= HEADER_BYTES + 4


def test_notes_come_back_without_a_network(tmp_path):
    net, quantised = tiny()
    path = tmp_path / "net.credo"
    for note in ("", "λ = 0.5, seed 3", "x" * 300):
        report = write(quantised, path, note)
        assert read_note(path) == note
        assert torch.equal(read(path, net).values("0.weight"), quantised.values("0.weight"))
    assert report.bytes < write(quantised, path).bytes + 300 * 9 / 8 + 4


def test_every_altered_byte_is_refused(tmp_path):
    net, quantised = tiny()
    path = tmp_path / "net.credo"
    write(quantised, path)
    data = path.read_bytes()
    for place in range(len(data)):
        for flip in (1, 0x80, 0xFF):
            path.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
            with pytest.raises(RunError, match="net.credo"):
                read(path, net)


def test_every_cut_and_every_addition_is_refused(tmp_path):
    net, quantised = tiny()
    path = tmp_path / "net.credo"
    write(quantised, path)
    data = path.read_bytes()
    for other in [data[:end] for end in range(len(data))] + [data + b"\0", data + b"x"]:
        path.write_bytes(other)
        with pytest.raises(RunError, match="damaged|cut or altered"):
            read(path, net)


def drawn():
    """A network whose codes are a pattern, so that its file never changes."""
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    book = torch.tensor([-0.75, -0.25, 0.5, 1.0])
    entries = {}
    for name, tensor in net.state_dict().items():
        ramp = torch.arange(tensor.numel()).reshape(tensor.shape)
        entries[name] = (
            Raw((ramp * 3).to(tensor.dtype))
            if name.startswith("1.")
            else Coded(ramp**2 % 7 * (ramp**2 % 7 < 5), book)
        )
    return net, Quantised(entries)


def test_files_of_this_version_stay_readable(tmp_path):
    """A file written when the format was made: if this fails, the format changed and needs a new
    version number.
    """
    net, quantised = drawn()
    path = tmp_path / "net.credo"
    path.write_bytes(bytes.fromhex(FIRST))
    assert all(torch.equal(read(path, net).state()[n], t) for n, t in quantised.state().items())
    assert read_note(path) == "first"
    write(quantised, tmp_path / "now.credo", "first")
    assert (tmp_path / "now.credo").read_bytes() == path.read_bytes()


def test_a_newer_version_says_so(tmp_path):
    net, quantised = tiny()
    path = tmp_path / "net.credo"
    write(quantised, path)
    data = bytearray(path.read_bytes())
    data[len(MAGIC)] = VERSION + 1
    path.write_bytes(bytes(data))
    with pytest.raises(RunError, match=f"written by a newer credo .format {VERSION + 1}"):
        read(path, net)


def test_another_network_is_refused(tmp_path):
    _, quantised = tiny()
    path = tmp_path / "net.credo"
    write(quantised, path)
    named = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for other in (nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), named):
        with pytest.raises(NetworkError, match="was written for another network"):
            read(path, other)


def test_a_stream_under_a_right_checksum_that_no_writer_made_is_refused(tmp_path):
    """Someone may forge a checksum; then nothing promises an error, but a crash is not one
    either.
    """
    net, quantised = tiny()
    path = tmp_path / "net.credo"
    write(quantised, path)
    data = path.read_bytes()
    refused = 0
    for place in range(HEADER_BYTES, len(data)):
        body = bytearray(data[9:])
        body[place - 9] ^= 0xFF
        path.write_bytes(data[:5] + zlib.crc32(bytes(body)).to_bytes(4, "little") + bytes(body))
        try:
            read(path, net)
        except CredoError:
            refused += 1
    assert refused > 0


def test_missing_files_and_folders_are_named(tmp_path):
    net, quantised = tiny()
    with pytest.raises(RunError, match="Cannot read .*nothing.credo"):
        read(tmp_path / "nothing.credo", net)
    with pytest.raises(RunError, match="Cannot write"):
        write(quantised, tmp_path / "no" / "folder.credo")


def test_float64_networks_read_float32_codes(tmp_path):
    net, quantised = with_batchnorm()
    write(quantised, tmp_path / "net.credo")
    double = net.double()
    filled = read(tmp_path / "net.credo", double).fill(double)
    assert all(
        torch.equal(t.float(), quantised.state()[n].float()) for n, t in filled.state_dict().items()
    )
    assert filled.state_dict()["0.weight"].dtype == torch.float64
