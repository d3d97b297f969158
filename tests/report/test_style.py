import itertools

from credo.report.style import POINT_COLOURS, faded, layout, legend_room, with_legend


def test_a_colour_fades():
    assert faded("#ff0010", 0.5) == "rgba(255,0,16,0.5)"


def test_the_legend_makes_room_for_itself():
    plain, named = layout("t", "x", "y"), with_legend(layout("t", "x", "y"))
    assert (
        not plain["showlegend"]
        and named["showlegend"]
        and named["margin"]["t"] > plain["margin"]["t"]
    )


def lab(colour):
    """CIE L*a*b* (D65) of ``#rrggbb``."""
    srgb = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in srgb)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    f, g, h = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * g - 16, 500 * (f - g), 200 * (g - h)


def test_ten_kinds_of_points_can_be_told_apart_on_light_and_on_dark():
    # 2.3 is the least difference that can be seen side by side; small points far apart need ten
    # times as much.
    apart = [
        sum((p - q) ** 2 for p, q in zip(lab(a), lab(b), strict=True)) ** 0.5
        for a, b in itertools.combinations(POINT_COLOURS, 2)
    ]
    assert len(POINT_COLOURS) == 10 and min(apart) > 23
    assert all(35 < lab(colour)[0] < 80 for colour in POINT_COLOURS)


def test_more_and_longer_names_need_more_room():
    assert (
        legend_room(["a"])
        == legend_room([])
        < legend_room(["a"] * 20)
        < legend_room(["a rather long name"] * 20)
    )
