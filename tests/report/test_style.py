from credo.report.style import faded, layout, with_legend


def test_a_colour_fades():
    assert faded("#ff0010", 0.5) == "rgba(255,0,16,0.5)"


def test_the_legend_makes_room_for_itself():
    plain, named = layout("t", "x", "y"), with_legend(layout("t", "x", "y"))
    assert not plain["showlegend"] and named["showlegend"] and named["margin"]["t"] > plain["margin"]["t"]
